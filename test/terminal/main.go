// Command terminal draws the recording of a terminal, an asciicast of version 2, as an animated SVG. The
// drawing depends on no font: each word has its place and its width, and long lines are folded.
// `make recordings` draws the walkthroughs.
//
//	go run ./test/terminal --out docs/recordings/the-first-hour.svg bin/recordings/the-first-hour.cast
//	go run ./test/terminal --still --out explain.svg explain.cast    # only the last screen
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

func main() {
	out := pflag.String("out", "", "the SVG to write")
	still := pflag.Bool("still", false, "draw only the last screen, as tall as its text and without the frame of a window")
	scale := pflag.Float64("scale", 1, "enlarge the drawing by a factor")
	pflag.Parse()
	if *out == "" || pflag.NArg() != 1 || *scale <= 0 {
		fmt.Fprintln(os.Stderr, "terminal: name the SVG with --out, and one asciicast after the flags")
		os.Exit(2)
	}
	if err := convert(pflag.Arg(0), *out, drawing{still: *still, scale: *scale}); err != nil {
		fmt.Fprintf(os.Stderr, "terminal: %v\n", err)
		os.Exit(1)
	}
}

// convert draws the recording in a file into another file.
func convert(from, to string, d drawing) (err error) {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	c, err := readCast(file)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	frames, err := c.play()
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, d.draw(c, frames), 0o644)
}
