package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// install makes sure that s is installed under root and returns its folder. It
// waits for another process that installs there at the moment.
func (s *spec) install(ctx context.Context, root string) (string, error) {
	dir := filepath.Join(root, s.name+"-"+s.version)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()

	// The marker is written last: a folder without it, or with that of other
	// packages, is what an installation left that did not end.
	want := s.contents()
	marker := filepath.Join(dir, "installed")
	is, err := os.ReadFile(marker)
	if err == nil && string(is) == want {
		return dir, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "emulators: installing %s %s into %s\n", s.name, s.version, dir)
	var commands [][]string
	var environ []string
	if s.gobin != "" {
		commands = [][]string{{"go", "install", s.gobin}}
		environ = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	} else if s.pip != nil {
		commands = [][]string{
			{"python3", "-m", "venv", dir},
			append([]string{filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"}, s.pip...),
		}
	} else {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		commands = [][]string{append([]string{"npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error"}, s.npm...)}
	}
	for _, c := range commands {
		cmd := exec.CommandContext(ctx, c[0], c[1:]...)
		cmd.Env = environ
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("install %s %s: %s: %w\n%s", s.name, s.version, strings.Join(c, " "), err, tail(out))
		}
	}
	return dir, os.WriteFile(marker, []byte(want), 0o644)
}

// contents is what the marker of an installation of s holds.
func (s *spec) contents() string {
	return strings.Join(slices.Concat(s.pip, s.npm, []string{s.gobin}), "\n") + "\n"
}

// tail is the end of what a program printed.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }
