package messages

import (
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// What is refused for blocks that can be left out is told from all else.
func TestRefused(t *testing.T) {
	for message, want := range map[string]psych.BlockKind{
		"messages.1.content.0: Invalid `signature` in `thinking` block":                        psych.ProviderBlocks,
		"messages.1.content.0: Invalid `data` in `redacted_thinking` block":                    psych.ProviderBlocks,
		"messages.3.content.1.content.0: Invalid `encrypted_content` in `search_result` block": psych.ProviderBlocks,
		"messages.1.content.0.thinking.signature: Field required":                              psych.ProviderBlocks,
		"messages.5.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.": psych.ProviderBlocks,
		"messages.1.content.0: The `thinking` block is bound to a different conversation":                                                                                                    psych.ProviderBlocks,

		"Could not process image":                     psych.ImageBlocks,
		"Could not process PDF":                       psych.ImageBlocks,
		"The PDF specified was not valid.":            psych.ImageBlocks,
		"A maximum of 100 PDF pages may be provided.": psych.ImageBlocks,
		"messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes":                                            psych.ImageBlocks,
		"messages.2.content.0.tool_result.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels": psych.ImageBlocks,
		"messages.0.content.1.image.source.base64.data: Image does not match the provided media type image/png":                                          psych.ImageBlocks,
		"'claude-3-5-haiku-20241022' does not support image input.":                                                                                      psych.ImageBlocks,
		"messages: Too many images and documents: 0 + 101 > 100":                                                                                         psych.ImageBlocks,

		"messages.3.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.": "",
		"prompt is too long: 210000 tokens > 200000 maximum, with images not supported":                "",
		"`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.":           "",
		"tools.0.custom.input_schema: JSON schema is invalid":                                          "",
		"thinking.budget_tokens: Input should be greater than or equal to 1024":                        "",
		"tools.4.custom.name: String should match pattern: image_maker.":                               "",
		"tools.4.custom.description: unsupported characters in 'draws an image'":                       "",
		"messages: text content blocks must be non-empty":                                              "",
	} {
		for _, status := range []int{0, 400} {
			if got := (Said{Message: message, Type: "invalid_request_error", Found: true}).Refused(status); got != want {
				t.Errorf("%d, %s: %q, want %q", status, message, got, want)
			}
		}
		for _, status := range []int{401, 429, 529} {
			if got := (Said{Message: message}).Refused(status); got != "" {
				t.Errorf("%d, %s: %q, want none", status, message, got)
			}
		}
	}
}
