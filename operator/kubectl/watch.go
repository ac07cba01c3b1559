package main

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
)

// clearScreen moves the cursor of a terminal to the top, and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// watchStatus shows the status, and again what has changed, until ctx ends.
func (c *command) watchStatus(ctx context.Context, client *cluster.Client, stdout io.Writer) error {
	screen := isTerminal(stdout)
	var last *summary
	err := client.FollowPolicies(ctx, func(policies []v1.ClusterPolicy, nodes []corev1.Node) error {
		s := summarize(policies, nodes, time.Now())
		if last != nil && !screen && reflect.DeepEqual(last.Policies, s.Policies) && reflect.DeepEqual(last.Nodes, s.Nodes) {
			return nil // only listed again
		}
		defer func() { last = &s }()
		text := func(w io.Writer, look style) error {
			switch {
			case screen:
				if _, err := io.WriteString(w, clearScreen); err != nil {
					return err
				}
				return s.text(w, look)
			case last == nil:
				return s.text(w, look)
			}
			return s.changes(w, look, *last)
		}
		if last != nil && c.output == "yaml" {
			if _, err := io.WriteString(stdout, "---\n"); err != nil {
				return err
			}
		}
		return c.write(stdout, s, text)
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil // a watch ends by an interrupt
	}
	return err
}

// changes writes the lines of the summary that an earlier one would not have now.
func (s summary) changes(w io.Writer, look style, before summary) error {
	before.Time = s.Time // ages are no change
	var old, text strings.Builder
	if err := before.text(&old, look); err != nil {
		return err
	}
	if err := s.text(&text, look); err != nil {
		return err
	}
	count := map[string]int{}
	for line := range strings.Lines(old.String()) {
		count[line]++
	}
	var changed strings.Builder
	for line := range strings.Lines(text.String()) {
		if count[line]--; count[line] < 0 && strings.TrimSpace(line) != "" {
			changed.WriteString(line)
		}
	}
	if changed.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, look.paint(dim, s.Time.Format(time.RFC3339))+"\n"+changed.String())
	return err
}

func isTerminal(w io.Writer) bool {
	f, is := w.(*os.File)
	return is && term.IsTerminal(int(f.Fd()))
}
