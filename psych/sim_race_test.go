//go:build race

package psych_test

// The race detector makes an interleaving several times as slow.
const simDefault = 400
