package psych_test

import (
	"context"
	"fmt"
	"log"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

func Example() {
	// What a model would say: a script stands in for one, so this needs no key.
	says, err := script.Parse([]byte(`
steps:
  - calls: [{name: add, arguments: {a: 2, b: 3}}]
  - text: 2 and 3 make 5.
`))
	if err != nil {
		log.Fatal(err)
	}

	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	add := psych.NewTool("add", "Adds two integers.",
		func(_ context.Context, _ *psych.Call, in numbers) (int, error) { return in.A + in.B, nil }, nil)

	rt, err := psych.New(memory.New(nil), &psych.Options{
		Blobs:  memory.NewBlobs(nil),
		Models: psych.OneModel(script.New(says, nil)),
		Tools:  []*psych.Tool{add},
	})
	if err != nil {
		log.Fatal(err)
	}

	spec := &psych.Spec{Name: "adder", Instructions: "You add numbers.", Tools: []string{"add"}}
	answer, err := rt.Ask(context.Background(), psych.Scope{Tenant: "acme"}, spec, "What is 2 and 3?", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Text)
	fmt.Println(answer.Report.Turns, "turns,", answer.Report.ToolCalls[0].ResultBytes, "byte of results")
	// Output:
	// 2 and 3 make 5.
	// 2 turns, 1 byte of results
}
