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

func TestNoticeOfAHeaderIsItsCommentWithTheCopyright(t *testing.T) {
	got, err := noticeOf("/*** VERSION ***/\n/*\n * Copyright 2026 A\n *\n *  1. Keep this.\n */\n/* Copyright 2027 B */\n")
	if want := "    Copyright 2026 A\n\n     1. Keep this.\n"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := noticeOf("/* a header */ int f(void);"); err == nil || !strings.Contains(err.Error(), "no comment has a copyright line") {
		t.Errorf("error %v", err)
	}
}

func TestChartsOfOthersAreListedWithTheirLicence(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, chartFolder, "theirs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"LICENSE": isc, "Chart.yaml": "name: theirs\nversion: 0.2.1\nappVersion: v1.2.3\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := charts(root)
	if want := "| [theirs](" + chartFolder + "/theirs) | v1.2.3 | ISC |\n"; err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if err := os.Remove(filepath.Join(dir, "LICENSE")); err != nil {
		t.Fatal(err)
	}
	if _, err := charts(root); err == nil || !strings.Contains(err.Error(), "no licence was found") {
		t.Errorf("error %v", err)
	}
}
