package assemble

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// source is the state of the repository.
type source struct {
	commit  string
	time    time.Time // of the commit
	changes []string  // files that differ from the commit
}

// readSource asks git.
func readSource(ctx context.Context, top string) (s source, err error) {
	out, err := run(ctx, top, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return s, err
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(out), " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return s, fmt.Errorf("git log: %q: a commit and its time expected", out)
	}
	s.commit, s.time = commit, time.Unix(n, 0).UTC()
	if out, err = run(ctx, top, "git", "status", "--porcelain"); err != nil {
		return s, err
	}
	for line := range strings.Lines(out) {
		if len(line) > 3 {
			s.changes = append(s.changes, strings.TrimSpace(line[3:]))
		}
	}
	return s, nil
}

// run runs a program in a folder and returns its output.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(problems.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{name}, args[:min(len(args), 2)]...), " "), err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return out.String(), nil
}
