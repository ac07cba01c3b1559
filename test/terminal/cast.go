package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// cast is a recording: https://docs.asciinema.org/manual/asciicast/v2/
type cast struct {
	title         string
	width, height int // in cells
	events        []event
}

// event is a text that appeared at a time.
type event struct {
	at   time.Duration
	text string
}

// readCast reads an asciicast of version 2.
func readCast(from io.Reader) (c cast, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	var head struct {
		Version, Width, Height int
		Title                  string
	}
	if !lines.Scan() {
		return c, errors.Join(errors.New("no asciicast: it is empty"), lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
		return c, fmt.Errorf("no asciicast: %w", err)
	}
	if head.Version != 2 || head.Width < 20 || head.Height < 1 {
		return c, fmt.Errorf("version %d with %d columns and %d rows: only version 2 with at least 20 columns can be drawn",
			head.Version, head.Width, head.Height)
	}
	c.title, c.width, c.height = head.Title, head.Width, head.Height
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var seconds float64
		var kind, text string
		if err := json.Unmarshal(lines.Bytes(), &[]any{&seconds, &kind, &text}); err != nil {
			return c, fmt.Errorf("event %d: %w", len(c.events)+1, err)
		}
		if kind == "o" {
			c.events = append(c.events, event{time.Duration(seconds * float64(time.Second)), text})
		}
	}
	return c, lines.Err()
}

// frame is the content of the screen from a time on.
type frame struct {
	at   time.Duration
	rows []line
}

// shortestFrame is the time in which what appears is drawn at once. Nobody can see a shorter frame.
const shortestFrame = 40 * time.Millisecond

// play returns the frames of a recording. The first one is that of its first text.
func (c cast) play() ([]frame, error) {
	s := screen{width: c.width, height: c.height}
	var frames []frame
	for _, e := range c.events {
		if err := s.print(e.text); err != nil {
			return nil, fmt.Errorf("after %v: %w", e.at, err)
		}
		rows := s.rows()
		last := len(frames) - 1
		switch {
		case last >= 0 && equalRows(frames[last].rows, rows):
		case last >= 0 && e.at-frames[last].at < shortestFrame:
			frames[last].rows = rows
		default:
			frames = append(frames, frame{e.at, rows})
		}
	}
	if len(frames) == 0 {
		return nil, errors.New("nothing is printed in it")
	}
	return frames, nil
}
