//go:build linux || darwin

package exec_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/psych-go/psych-go/adapters/exec"
	"github.com/psych-go/psych-go/psych"
)

func ExampleNew() {
	run, err := exec.New(os.TempDir(), &exec.Options{Allow: []string{"grep"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, args := range []string{
		`{"command":["grep","-c","a"],"stdin":"a\nb\na\n"}`,
		`{"command":["grep","-c","x"],"stdin":"a\nb\na\n"}`,
		`{"command":["rm","-r","."]}`,
	} {
		result, err := run.Call(context.Background(), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(args)}})
		if err != nil {
			fmt.Println(err)
			continue
		}
		text, _ := io.ReadAll(result.Body)
		fmt.Println(string(text))
	}
	// Output:
	// {"exit_code":0,"stdout_bytes":2,"stderr_bytes":0}
	// {"exit_code":1,"stdout_bytes":2,"stderr_bytes":0}
	// exec: the program "rm" is not allowed: want one of grep
}
