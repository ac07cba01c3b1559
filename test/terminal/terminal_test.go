package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/golden"
)

// show returns the rows of a screen on which texts were printed.
func show(t *testing.T, width, height int, texts ...string) string {
	t.Helper()
	s := screen{width: width, height: height}
	for _, text := range texts {
		require.NoError(t, s.print(text))
	}
	var all []string
	for _, row := range s.rows() {
		all = append(all, row.String())
	}
	return strings.Join(all, "\n")
}

func TestScreenShowsWhatATerminalShows(t *testing.T) {
	for name, c := range map[string]struct {
		texts []string
		want  string
	}{
		"lines":                          {[]string{"one\r\n", "two"}, "one\ntwo"},
		"the last lines":                 {[]string{"1\r\n2\r\n3\r\n4\r\n5"}, "2\n3\n4\n5"},
		"an overwritten line":            {[]string{"10 %", "\r\x1b[K", "done"}, "done"},
		"a cleared screen":               {[]string{"old\r\n", "\x1b[H\x1b[2J", "new"}, "new"},
		"a control sequence in two":      {[]string{"\x1b[3", "2mgreen\x1b", "[0m"}, "green"},
		"a tab":                          {[]string{"a\tb"}, "a       b"},
		"a long line, folded":            {[]string{"a line much too long for the screen"}, "a line much too long\n  for the screen"},
		"a word that ends at the edge":   {[]string{"twenty letters, all of them"}, "twenty letters, all\n  of them"},
		"a word longer than the screen":  {[]string{strings.Repeat("x", 25)}, strings.Repeat("x", 20) + "\n  xxxxx"},
		"a long word, folded at a comma": {[]string{"abcdefghijklm,nopqrstuvwxyz"}, "abcdefghijklm,\n  nopqrstuvwxyz"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, show(t, 20, 4, c.texts...)) })
	}
}

func TestUnknownControlSequencesAreErrors(t *testing.T) {
	s := screen{width: 20, height: 4}
	require.ErrorContains(t, s.print("\x1b[5A"), `the control sequence in "\x1b[5A" cannot be drawn`)
	require.Error(t, s.print("\x1b[38;5;1m"))
}

func readText(t *testing.T, text string) cast {
	t.Helper()
	c, err := readCast(strings.NewReader(text))
	require.NoError(t, err)
	return c
}

func TestFramesAreWhatCanBeSeen(t *testing.T) {
	c := readText(t, `{"version": 2, "width": 20, "height": 4, "title": "A & B"}
[1.0, "o", "$ "]
[1.5, "i", "ls"]
[1.5, "o", "ls"]
[1.51, "o", "\r\n"]
[1.52, "o", "a\r\n"]
[2.5, "o", "\u001b[0m"]
[3.5, "o", "b"]
`)
	frames, err := c.play()
	require.NoError(t, err)
	var at []time.Duration
	for _, f := range frames {
		at = append(at, f.at)
	}
	require.Equal(t, []time.Duration{time.Second, 1500 * time.Millisecond, 3500 * time.Millisecond}, at)
	require.Len(t, frames[1].rows, 3, "what comes 20 ms later is in the same frame")
	require.Equal(t, "b", frames[2].rows[2].String())
}

func TestOnlyAsciicastsOfVersion2AreRead(t *testing.T) {
	for text, want := range map[string]string{
		"":  "no asciicast: it is empty",
		"x": "no asciicast: ",
		`{"version": 1, "width": 80, "height": 24}`:                    "only version 2",
		`{"version": 2, "width": 4, "height": 24}`:                     "at least 20 columns",
		`{"version": 2, "width": 80, "height": 24}` + "\n" + `[1, "o"`: "event 1: ",
	} {
		_, err := readCast(strings.NewReader(text))
		require.ErrorContains(t, err, want, text)
	}
	_, err := readText(t, `{"version": 2, "width": 80, "height": 24}`).play()
	require.EqualError(t, err, "nothing is printed in it")
}

// example has a colour, a sign, lines that are drawn, and characters of XML.
const example = `{"version": 2, "width": 30, "height": 5, "title": "Quotes & <tags>"}
[0.5, "o", "\u001b[2m# Why: a < b && c\u001b[0m\r\n\u001b[1;32m$\u001b[0m "]
[1.5, "o", "gpu explain\r\n"]
[3, "o", "╭───╮  ╭───╮\r\n│\u001b[32m ok\u001b[0m│─▶│ ● │\r\n╰───╯╌▷╰───╯\r\n"]
`

func TestDrawing(t *testing.T) {
	c := readText(t, example)
	frames, err := c.play()
	require.NoError(t, err)
	for name, d := range map[string]drawing{"window": {}, "still": {still: true, scale: 2}} {
		made := d.draw(c, frames)
		requireXML(t, made)
		golden.Require(t, filepath.Join("testdata", name+".svg"), made)
	}
}

func requireXML(t *testing.T, text []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// TestNoWordLeavesItsCells checks that each text of the recordings in the documentation has the width of
// its cells and lies within the screen.
func TestNoWordLeavesItsCells(t *testing.T) {
	files, err := filepath.Glob("../../docs/recordings/*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var drawn struct {
			Screen struct {
				Width int `xml:"width,attr"`
			} `xml:"svg"`
			Rows []struct {
				Texts []struct {
					X      int    `xml:"x,attr"`
					Length int    `xml:"textLength,attr"`
					Text   string `xml:",chardata"`
				} `xml:"text"`
			} `xml:"defs>g"`
		}
		require.NoError(t, xml.Unmarshal(data, &drawn), file)
		require.NotEmpty(t, drawn.Rows, file)
		for _, row := range drawn.Rows {
			for _, text := range row.Texts {
				require.Equal(t, len([]rune(text.Text))*cellWidth, text.Length, "%s: %s", file, text.Text)
				require.LessOrEqual(t, text.X+text.Length, drawn.Screen.Width, "%s: %s", file, text.Text)
			}
		}
	}
}
