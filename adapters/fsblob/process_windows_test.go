package fsblob

import "testing"

func setUmask(int) int { return 0 }

func asNobody(*testing.T) {}
