package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Page is a page in a separate tab.
type Page struct {
	browser *Browser
	session string
}

type object = map[string]any

// NewPage opens an empty tab of that size, in pixels.
func (b *Browser) NewPage(ctx context.Context, width, height int) (*Page, error) {
	var tab struct{ TargetID string }
	if err := b.call(ctx, "", "Target.createTarget", object{"url": "about:blank"}, &tab); err != nil {
		return nil, err
	}
	var attached struct{ SessionID string }
	if err := b.call(ctx, "", "Target.attachToTarget", object{"targetId": tab.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	p := &Page{browser: b, session: attached.SessionID}
	size := object{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}
	return p, p.call(ctx, "Emulation.setDeviceMetricsOverride", size, nil)
}

func (p *Page) call(ctx context.Context, method string, params, result any) error {
	return p.browser.call(ctx, p.session, method, params, result)
}

// Open opens a URL and returns when the page is loaded.
func (p *Page) Open(ctx context.Context, url string) error {
	var to struct{ ErrorText string }
	if err := p.call(ctx, "Page.navigate", object{"url": url}, &to); err != nil {
		return err
	}
	if to.ErrorText != "" {
		return fmt.Errorf("open %s: %s", url, to.ErrorText)
	}
	return p.Wait(ctx, `document.readyState == "complete"`)
}

// Run evaluates a JavaScript expression, waits for it if it is a promise, and decodes its value into
// value, unless that is nil.
func (p *Page) Run(ctx context.Context, expression string, value any) error {
	outcome := struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}{}
	outcome.Result.Value = value
	params := object{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}
	if err := p.call(ctx, "Runtime.evaluate", params, &outcome); err != nil {
		return err
	}
	if e := outcome.ExceptionDetails; e != nil {
		return fmt.Errorf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	return nil
}

// Wait returns when a JavaScript expression is true. The page may reload meanwhile.
func (p *Page) Wait(ctx context.Context, expression string) error {
	for {
		var yes bool
		err := p.Run(ctx, "Boolean("+expression+")", &yes)
		if yes {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for %s: %w", expression, context.Cause(ctx)), err)
		}
	}
}

// Prefer sets prefers-color-scheme for the pages opened later: "light" or "dark".
func (p *Page) Prefer(ctx context.Context, scheme string) error {
	return p.call(ctx, "Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Picture returns the page as a PNG: the visible part or, with whole, all of it.
func (p *Page) Picture(ctx context.Context, whole bool) ([]byte, error) {
	var taken struct{ Data []byte }
	err := p.call(ctx, "Page.captureScreenshot", object{"format": "png", "captureBeyondViewport": whole, "optimizeForSpeed": false}, &taken)
	return taken.Data, err
}
