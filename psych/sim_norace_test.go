//go:build !race

package psych_test

const simDefault = 1000
