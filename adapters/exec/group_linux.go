package exec

import (
	"bytes"
	"os"
	"strconv"
)

// runs reports whether a process of the group has not ended yet; so it does
// where it can't see.
func (g group) runs() bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return true
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return true
	}
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		// "12 (name) S 1 11 …": number, name, state, parent, group.
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if err != nil || len(fields) < 3 || string(fields[2]) != strconv.Itoa(int(g)) {
			continue
		}
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}
