// Command picture takes pictures of a page with a headless Chromium:
//
//	go run ./test/browser/picture --out report.png report.html
//	go run ./test/browser/picture --scheme dark --width 800 --out dark.png report.html
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/test/browser"
	"github.com/gpuready/gpuready/test/cluster/binaries"
)

type options struct {
	page, out, scheme string
	width, height     int
	whole             bool
}

func main() {
	var o options
	pflag.StringVar(&o.out, "out", "picture.png", "the PNG to write")
	pflag.StringVar(&o.scheme, "scheme", "light", "prefers-color-scheme: light or dark")
	pflag.IntVar(&o.width, "width", 1200, "of the window, in pixels")
	pflag.IntVar(&o.height, "height", 800, "of the window, in pixels")
	pflag.BoolVar(&o.whole, "whole", true, "all of the page, not only the window")
	pflag.Parse()
	if o.page = pflag.Arg(0); o.page == "" || pflag.NArg() > 1 {
		fmt.Fprintln(os.Stderr, "picture: name one HTML file or URL, after the flags")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := takePicture(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func takePicture(ctx context.Context, o options) (err error) {
	cache, err := binaries.DefaultCache()
	if err != nil {
		return err
	}
	b, err := browser.Start(ctx, cache, io.Discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	url := o.page
	if !strings.Contains(url, "://") {
		path, err := filepath.Abs(url)
		if err != nil {
			return err
		}
		url = "file://" + path
	}
	p, err := b.NewPage(ctx, o.width, o.height)
	if err != nil {
		return err
	}
	if err := p.Prefer(ctx, o.scheme); err != nil {
		return err
	}
	if err := p.Open(ctx, url); err != nil {
		return err
	}
	picture, err := p.Picture(ctx, o.whole)
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, picture, 0o644)
}
