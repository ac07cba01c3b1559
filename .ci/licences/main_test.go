package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const isc = "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided that the above copyright notice and this permission notice appear in all copies.\n\n" +
	"THE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.\n"

func TestLicenceIsFoundByItsText(t *testing.T) {
	for _, c := range []struct{ file, text, want, wrong string }{
		{"LICENSE", isc, "ISC", ""},
		{"licence.md", isc, "ISC", ""},
		{"LICENSE.docs", isc, "", "no licence was found"},
		{"README", isc, "", "no licence was found"},
		{"COPYING", "All rights reserved. Ask before you copy.", "", "known licences"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		ids, err := licences(dir)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: error %v, want %q", c.file, err, c.wrong)
			}
			continue
		}
		if err != nil || !slices.Equal(ids, []string{c.want}) {
			t.Errorf("%s: %v, %v, want %s", c.file, ids, err, c.want)
		}
	}
}
