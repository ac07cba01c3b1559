package apply

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Print prints the changes for people, byte for byte: text as lines marked with + and -,
// anything else by size and SHA-256.
func Print(w io.Writer, changes []Change) error {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s %s", c.Verb, c.Path)
		switch {
		case c.File != nil:
			fmt.Fprintf(&b, " (file, %#o, %d bytes)", c.File.Mode, len(c.File.Data))
		case c.Node != nil:
			fmt.Fprintf(&b, " (device node %d:%d, %#o)", c.Node.Major, c.Node.Minor, c.Node.Mode)
		case c.Link != "":
			fmt.Fprintf(&b, " (link to %s)", c.Link)
		}
		if c.Before != "" {
			fmt.Fprintf(&b, "; there is now: %s", c.Before)
		}
		b.WriteString("\n")
		if c.File != nil {
			var old []byte
			if c.Was.File != nil {
				old = c.Was.File.Data
			}
			printBody(&b, old, c.File.Data)
		}
	}
	if len(changes) == 0 {
		b.WriteString("nothing to change\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printBody prints a file's new content, or its difference from the old one.
func printBody(b *strings.Builder, old, data []byte) {
	if !isText(old) || !isText(data) {
		sum := sha256.Sum256(data)
		fmt.Fprintf(b, "    sha256 %s\n", hex.EncodeToString(sum[:]))
		return
	}
	before, after := lines(old), lines(data)
	same := 0 // omit a common beginning and end
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	end := 0
	for end < min(len(before), len(after))-same && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	if same+end > 0 {
		fmt.Fprintf(b, "    @@ line %d @@\n", same+1)
	}
	for _, l := range before[same : len(before)-end] {
		fmt.Fprintf(b, "    -%s\n", l)
	}
	for _, l := range after[same : len(after)-end] {
		fmt.Fprintf(b, "    +%s\n", l)
	}
}

func isText(data []byte) bool { return utf8.Valid(data) && !bytes.ContainsRune(data, 0) }

func lines(data []byte) []string {
	all := slices.Collect(strings.Lines(string(data)))
	for i, l := range all {
		all[i] = strings.TrimSuffix(l, "\n")
	}
	return all
}
