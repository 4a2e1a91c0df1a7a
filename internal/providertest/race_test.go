//go:build race

package providertest

// The race detector makes a mission several times as slow.
const slow = true
