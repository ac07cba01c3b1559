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
	shown := statusView{screen: isTerminal(stdout)}
	err := client.FollowPolicies(ctx, func(policies []v1.ClusterPolicy, nodes []corev1.Node) error {
		s := summarize(policies, nodes, time.Now())
		if last := shown.last; last != nil && !shown.screen && reflect.DeepEqual(last.Policies, s.Policies) && reflect.DeepEqual(last.Nodes, s.Nodes) {
			return nil // only listed again
		}
		defer func() { shown.last = &s }()
		if shown.last != nil && c.output == "yaml" {
			if _, err := io.WriteString(stdout, "---\n"); err != nil {
				return err
			}
		}
		return c.write(stdout, s, func(w io.Writer, look style) error { return shown.text(w, look, s) })
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil // a watch ends by an interrupt
	}
	return err
}

// statusView is the text that a watch shows.
type statusView struct {
	screen bool // a terminal, on which each text replaces the one before
	last   *summary
	look   style // of the last text on a screen
}

// text shows a summary: all of it at first, and whenever its text has changed on a screen; otherwise the
// lines that have changed.
func (v *statusView) text(w io.Writer, look style, s summary) error {
	switch {
	case !v.screen && v.last == nil:
		return s.text(w, look)
	case !v.screen:
		return s.changes(w, look, *v.last)
	}
	if v.last != nil && v.look == look { // another size needs another text
		old, text, err := s.compare(look, *v.last)
		if err != nil || old == text {
			return err
		}
	}
	v.look = look
	if _, err := io.WriteString(w, clearScreen); err != nil {
		return err
	}
	return s.text(w, look)
}

// compare returns the text of an earlier summary, as it would be now, and that of the summary: ages are no
// change.
func (s summary) compare(look style, before summary) (old, text string, err error) {
	before.Time = s.Time
	var then, now strings.Builder
	if err := before.text(&then, look); err != nil {
		return "", "", err
	}
	err = s.text(&now, look)
	return then.String(), now.String(), err
}

// changes writes the lines of the summary that an earlier one would not have now.
func (s summary) changes(w io.Writer, look style, before summary) error {
	old, text, err := s.compare(look, before)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for line := range strings.Lines(old) {
		count[line]++
	}
	var changed strings.Builder
	for line := range strings.Lines(text) {
		if count[line]--; count[line] < 0 && strings.TrimSpace(line) != "" {
			changed.WriteString(line)
		}
	}
	if changed.Len() == 0 {
		return nil
	}
	_, err = io.WriteString(w, look.paint(dim, s.Time.Format(time.RFC3339))+"\n"+changed.String())
	return err
}

func isTerminal(w io.Writer) bool {
	f, is := w.(*os.File)
	return is && term.IsTerminal(int(f.Fd()))
}
