package main

import (
	"context"
	"errors"
	"io"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

type pictureOptions struct {
	page, out, scheme string
	width, height     int
	whole             bool
}

// pictureCommand takes a picture of a page.
func pictureCommand(ctx context.Context, args []string) error {
	var o pictureOptions
	f := pflag.NewFlagSet("picture", pflag.ContinueOnError)
	f.StringVar(&o.out, "out", "picture.png", "the PNG to write")
	f.StringVar(&o.scheme, "scheme", "light", "prefers-color-scheme: light or dark")
	f.IntVar(&o.width, "width", 1200, "of the window, in pixels")
	f.IntVar(&o.height, "height", 800, "of the window, in pixels")
	f.BoolVar(&o.whole, "whole", true, "all of the page, not only the window")
	if err := f.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if o.page = f.Arg(0); o.page == "" || f.NArg() > 1 {
		return usageError{errors.New("name one HTML file or URL, after the flags")}
	}
	return takePicture(ctx, o)
}

func takePicture(ctx context.Context, o pictureOptions) (err error) {
	cache, err := binaries.DefaultCache()
	if err != nil {
		return err
	}
	b, err := StartBrowser(ctx, cache, io.Discard)
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
		url = (&neturl.URL{Scheme: "file", Path: path}).String()
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
