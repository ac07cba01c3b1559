package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
)

// Walkthrough runs the commands of a section of docs/walkthroughs.md.
func (s *Suite) Walkthrough(t *testing.T, section string) {
	t.Helper()
	s.PlayPage(t, "walkthroughs.md", section)
}

// PlayPage runs each command of a section of a page in docs once, in their order, and compares what it prints
// with the page. "…" on the page stands for any text, and alone on a line for any lines. Runs of spaces may
// have another length, but columns must be separated as on the page. The variables env, each as NAME=value, are
// added to the environment of the commands. If GPUREADY_RECORD names a folder, they run on a terminal, which
// is recorded there.
func (s *Suite) PlayPage(t *testing.T, page, section string, env ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	require.NoError(t, err)
	s.PlayText(t, string(text), page, section, env...)
}

// PlayText does what PlayPage does with the text of a page.
func (s *Suite) PlayText(t *testing.T, text, page, section string, env ...string) {
	t.Helper()
	commands := parseWalkthrough(text, section)
	require.NotEmpty(t, commands, "docs/%s has no commands in section %q", page, section)
	record, err := createRecording(section)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, record.close()) })
	for _, c := range commands {
		began := time.Now()
		printed, err := s.documented(t, c.line, env)
		out := plainText(printed)
		t.Logf("%5.1f s  $ %s\n%s", time.Since(began).Seconds(), c.line, out)
		require.NoError(t, err)
		require.Regexp(t, c.prints, normalize(withoutLog(out)), "docs/%s, after %q", page, c.line)
		require.NoError(t, record.command(c.about, c.line, printed))
	}
}

// documentedCommand is a command of a page, with what it prints.
type documentedCommand struct {
	about  string // the text above it
	line   string
	prints *regexp.Regexp // normalized
}

// parseWalkthrough returns the commands of a section: the indented lines that begin with "$ ", each with the
// indented lines below it.
func parseWalkthrough(page, section string) (all []documentedCommand) {
	_, text, _ := strings.Cut(page, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var printed, about []string
	end := func() {
		if len(all) > 0 && all[len(all)-1].prints == nil {
			all[len(all)-1].prints = regexp.MustCompile(`^` + pattern(printed) + `$`)
		}
		printed = nil
	}
	for line := range strings.Lines(text) {
		line, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case indented && is:
			end()
			all = append(all, documentedCommand{about: plainProse(about), line: command})
			about = nil
		case indented:
			printed = append(printed, line)
		case line == "":
			about = append(about, line)
		default:
			end()
			about = append(about, line)
		}
	}
	end()
	return all
}

// pattern returns the regular expression of normalized lines.
func pattern(lines []string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(normalize(strings.Join(lines, "\n")), "\n") {
		switch line {
		case "":
		case "…":
			b.WriteString(`(?:[^\n]*\n)*?`)
		default:
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", `[^\n]*`) + `\n`)
		}
	}
	return b.String()
}

var spaces = regexp.MustCompile(` {2,}`)

// normalize returns the lines that are not blank, each with a line break. A run of spaces, which separates
// columns or indents a line, becomes two: its length depends on names and ages.
func normalize(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimRightFunc(line, unicode.IsSpace); line != "" {
			b.WriteString(spaces.ReplaceAllString(line, "  ") + "\n")
		}
	}
	return b.String()
}

// plainProse returns the last paragraph of a text in Markdown, without its links.
func plainProse(lines []string) string {
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	if i := strings.LastIndex(text, "\n\n"); i >= 0 {
		text = text[i+2:]
	}
	text = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "`", "")), " ")
}

// documented runs a command line of the documentation in the project's folder, with the variables env,
// on a terminal if it is recorded.
func (s *Suite) documented(t *testing.T, line string, env []string) ([]chunk, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "COLUMNS=400",
		fmt.Sprintf("PATH=%s:%s:%s", filepath.Dir(s.kubectlPath), os.Getenv("GPUREADY_E2E"), os.Getenv("PATH")))
	cmd.Env = append(cmd.Env, env...)
	if os.Getenv(recordVariable) != "" {
		return runOnTerminal(cmd)
	}
	out, err := cmd.CombinedOutput()
	return []chunk{{text: string(out)}}, err
}
