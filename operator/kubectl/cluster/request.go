package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// withTimeout bounds a request.
func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the API server has not answered within %v", c.timeout))
}

// Raw reads the resource at a path.
func (c *Client) Raw(ctx context.Context, path string, params map[string]string) ([]byte, error) {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	r := c.rest.Get().AbsPath(path).MaxRetries(0)
	for key, value := range params {
		r = r.Param(key, value)
	}
	return responseBody(ctx, r.Do(ctx))
}

// responseBody returns a response's body.
func responseBody(ctx context.Context, result rest.Result) ([]byte, error) {
	switch err := result.Error(); { // unlike Raw, it includes the text of a refusal
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	return result.Raw()
}

func (c *Client) get(ctx context.Context, path string, params map[string]string, into any) error {
	data, err := c.Raw(ctx, path, params)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// listPage is a page of any list.
type listPage[T any] struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []T             `json:"items"`
}

// list reads all pages. With ErrTooMany it returns the first objects.
func list[T any](ctx context.Context, c *Client, path string, params map[string]string) ([]T, error) {
	all := []T{}
	query := map[string]string{"limit": strconv.Itoa(pageSize)}
	maps.Copy(query, params)
	for {
		var l listPage[T]
		if err := c.get(ctx, path, query, &l); err != nil {
			return all, err
		}
		all = append(all, l.Items...)
		switch {
		case l.Metadata.Continue == "":
			return all, nil
		case len(all) >= maxObjects:
			return all, ErrTooMany
		}
		query["continue"] = l.Metadata.Continue
	}
}

// post creates an object and decodes the answer.
func (c *Client) post(ctx context.Context, path string, body []byte, into any) error {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	data, err := responseBody(ctx, c.rest.Post().AbsPath(path).Body(body).MaxRetries(0).Do(ctx))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func params(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all[pairs[i]] = pairs[i+1]
		}
	}
	return all
}
