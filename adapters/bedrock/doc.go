// Package bedrock is a [psych.Model] for Anthropic's models on Amazon Bedrock,
// by InvokeModelWithResponseStream on the AWS SDK: a role is enough, no key is
// needed. The role must be allowed bedrock:InvokeModelWithResponseStream on the
// model, and on the inference profile where one is used.
//
// The body is that of the Messages API, as package anthropic describes it
// (system, results, reasoning, trailing message, options, markers, stop
// reasons), without the model, which is in the path, and with
// anthropic_version. It is never joined in memory: the SDK reads the parts, to
// sign them and to send them. Its retries are off; Psych repeats.
//
// Bedrock reserves quota for max_tokens as a request begins, so a
// max_output_tokens in the Spec, or max_tokens in the URL, that fits the answers
// lets more requests run at once than the default of 32,000.
package bedrock
