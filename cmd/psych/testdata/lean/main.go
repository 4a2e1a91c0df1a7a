// Command lean is a program that keeps everything in memory: TestLean reads
// what it links.
package main

import (
	"fmt"
	"os"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	if _, err := psych.New(memory.New(nil), &psych.Options{Blobs: memory.NewBlobs(nil)}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
