package memory_test

import (
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestStoreContract(t *testing.T) {
	contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
		return &contracttest.Fixture[psych.Store]{Port: memory.New(nil)}
	}, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Reopening}})
}
