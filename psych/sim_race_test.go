//go:build race

package psych_test

// The race detector makes an interleaving some ten times as slow.
const simDefault = 120
