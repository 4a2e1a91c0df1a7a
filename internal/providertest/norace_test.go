//go:build !race

package providertest

const slow = false
