package s3blob

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/psych"
)

func TestInit(t *testing.T) {
	const rule = "set a lifecycle rule that ends incomplete uploads after 7 days"
	blocked := "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls><IgnorePublicAcls>true</IgnorePublicAcls><BlockPublicPolicy>true</BlockPublicPolicy><RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>"
	lifecycle := func(rule string) string {
		return "<LifecycleConfiguration><Rule><Status>Enabled</Status>" + rule + "</Rule></LifecycleConfiguration>"
	}
	const abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload>"
	for name, c := range map[string]struct {
		missing bool
		answers map[string]string // by operation: XML, or a code
		want    []string
		err     string
	}{
		"created": {missing: true, want: []string{"created bucket bucket in region us-east-1", "blocked public access", rule}},
		"created by another meanwhile": {missing: true, answers: map[string]string{"PUT bucket": "BucketAlreadyOwnedByYou"},
			want: []string{"bucket bucket does not block public access: turn that on unless it is meant", rule}},
		"name taken":       {missing: true, answers: map[string]string{"PUT bucket": "BucketAlreadyExists"}, err: "taken by another account"},
		"creation refused": {missing: true, answers: map[string]string{"PUT bucket": "AccessDenied"}, err: "S3 denies access"},
		"forbidden":        {answers: map[string]string{"HeadBucket": "AccessDenied"}, err: "S3 denies access"},
		"settings refused": {missing: true, answers: map[string]string{"PUT publicAccessBlock": "AccessDenied", "PUT lifecycle": "NotImplemented", "GET versioning": "AccessDenied"},
			want: []string{"created bucket bucket in region us-east-1",
				"could not block public access: AccessDenied: as the test wants it",
				"no lifecycle rule ends incomplete uploads, and none could be set: NotImplemented: as the test wants it",
				"could not read whether the bucket keeps old versions: AccessDenied: as the test wants it"}},
		"reading refused": {answers: map[string]string{"GET publicAccessBlock": "AccessDenied", "GET lifecycle": "AccessDenied"},
			want: []string{"could not read whether the bucket blocks public access: AccessDenied: as the test wants it",
				"could not read whether a lifecycle rule ends incomplete uploads: AccessDenied: as the test wants it"}},
		"well kept":          {answers: map[string]string{"GET publicAccessBlock": blocked, "GET lifecycle": lifecycle("<Filter><Prefix></Prefix></Filter>" + abort)}},
		"well kept, by us":   {answers: map[string]string{"GET publicAccessBlock": blocked, "GET lifecycle": lifecycle("<Filter><Prefix>pre/</Prefix></Filter>" + abort)}},
		"well kept, of old":  {answers: map[string]string{"GET publicAccessBlock": blocked, "GET lifecycle": lifecycle("<Prefix></Prefix>" + abort)}},
		"rule for others":    {answers: map[string]string{"GET publicAccessBlock": blocked, "GET lifecycle": lifecycle("<Filter><Prefix>logs/</Prefix></Filter>" + abort)}, want: []string{`the bucket has lifecycle rules, and none ends incomplete uploads below "pre/": add one`}},
		"rule for tags":      {answers: map[string]string{"GET publicAccessBlock": blocked, "GET lifecycle": lifecycle("<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>" + abort)}, want: []string{`the bucket has lifecycle rules, and none ends incomplete uploads below "pre/": add one`}},
		"half open":          {answers: map[string]string{"GET publicAccessBlock": strings.Replace(blocked, "true", "false", 1)}, want: []string{"bucket bucket does not block public access: turn that on unless it is meant", rule}},
		"keeps old versions": {answers: map[string]string{"GET publicAccessBlock": blocked, "GET versioning": "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"}, want: []string{rule, "the bucket keeps old versions, of deleted Runs too: a lifecycle rule must end them"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.buckets[testBucket] = !c.missing
			f.before = func(r *call) bool {
				answer, ok := c.answers[r.op]
				if answer == "BucketAlreadyOwnedByYou" {
					f.mu.Lock()
					f.buckets[testBucket] = true
					f.mu.Unlock()
				}
				if ok && strings.HasPrefix(answer, "<") {
					fmt.Fprint(r.w, answer)
				} else if ok {
					r.fail(map[string]int{"AccessDenied": 403, "NotImplemented": 501, "BucketAlreadyOwnedByYou": 409, "BucketAlreadyExists": 409}[answer], answer)
				}
				return ok
			}
			notes, err := f.store(nil).Init(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || errors.Is(err, psych.ErrNotFound) || errors.Is(err, psych.ErrUnavailable) {
					t.Errorf("got %v, want an error that says %q", err, c.err)
				}
				return
			}
			if got := strings.Join(notes, "\n"); err != nil || got != strings.Join(c.want, "\n") {
				t.Errorf("got %v and\n%s\nwant\n%s", err, got, strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestInitRegion(t *testing.T) {
	f := newFake(t)
	f.buckets[testBucket] = false
	var body string
	f.before = func(c *call) bool {
		if c.op == "PUT bucket" {
			body = string(c.body)
		}
		return false
	}
	if _, err := New(f.client(func(o *s3.Options) { o.Region = "eu-west-1" }), testBucket, "", nil).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(body, "<LocationConstraint>eu-west-1</LocationConstraint>") {
		t.Errorf("created with %q", body)
	}
}
