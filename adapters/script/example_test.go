package script_test

import (
	"context"
	"fmt"

	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

func Example() {
	s, err := script.Parse([]byte(`
steps:
  - calls:
      - name: read_file
        arguments: {path: '${see (\S+\.txt)}', limit: 100}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	model := script.New(s, nil)

	// What psych does before it calls a Model: encode each message once.
	result, _, err := model.Codec().EncodeMessage(&psych.Message{Role: psych.RoleTool, Blocks: []psych.Block{
		{Result: &psych.ToolOutput{CallID: "c1_1", Text: "see notes.txt"}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := model.Generate(context.Background(), &psych.Request{History: []psych.Wire{{Bytes: result}}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.Stop, resp.Blocks[0].Call.Name, string(resp.Blocks[0].Call.Arguments))
	// Output: tool_use read_file {"path":"notes.txt","limit":100}
}
