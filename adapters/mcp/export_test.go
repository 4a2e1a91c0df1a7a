package mcp

import (
	"time"

	"github.com/psych-go/psych-go/psych"
)

// SetWaits sets for how long a call hears nothing before a ping is due, and for
// how long that may take.
func (c *Connector) SetWaits(silent, ping time.Duration) { c.silent, c.ping = silent, ping }

// Heard is how often progress was told for calls of a session.
func Heard(s psych.Session) int64 { return s.(*session).heard.Load() }
