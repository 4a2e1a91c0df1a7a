package mcp

import "github.com/psych-go/psych-go/psych"

// Heard is how often progress was told for calls of a session.
func Heard(s psych.Session) int64 { return s.(*session).heard.Load() }
