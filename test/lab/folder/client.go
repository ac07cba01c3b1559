package folder

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	server string
	http   *http.Client
}

// NewClient returns a client with a certificate and its key, for a server whose certificate the
// authority signed.
func NewClient(server string, authority []byte, client KeyPair) (*Client, error) {
	cert, err := tls.X509KeyPair(client.Cert, client.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("no certificate of the cluster's authority")
	}
	return &Client{server: server, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 5 * time.Second,
	}}}, nil
}

// openClient returns the client that a kubeconfig of this package describes.
func openClient(kubeconfig string) (*Client, error) {
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	server, authority, client, err := parseKubeconfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	return NewClient(server, authority, client)
}

// Check requests a path, and returns an error unless the response is 200 OK.
func (c *Client) Check(ctx context.Context, path string) error {
	body, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	return body.Close()
}

// DeleteNode deletes a Node; a missing one is no error.
func (c *Client) DeleteNode(ctx context.Context, name string) error {
	body, err := c.do(ctx, http.MethodDelete, "/api/v1/nodes/"+name)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return body.Close()
}

var errNotFound = errors.New("not found")

// get requests a path, and returns the body of a 200 OK response.
func (c *Client) get(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, path)
}

func (c *Client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotFound {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %w", path, errNotFound)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return resp.Body, nil
}

// NodeObject holds the fields of a Node that are used here, as the API server encodes them.
type NodeObject struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
		NodeInfo struct {
			BootID                  string `json:"bootID"`
			KubeletVersion          string `json:"kubeletVersion"`
			ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// Ready reports whether a node is Ready, and if not, why.
func (n NodeObject) Ready() (bool, string) {
	for _, condition := range n.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True", condition.Message
		}
	}
	return false, "its kubelet has not reported yet"
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) ([]NodeObject, error) {
	body, err := c.get(ctx, "/api/v1/nodes")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var list struct {
		Items []NodeObject `json:"items"`
	}
	err = json.NewDecoder(body).Decode(&list)
	return list.Items, err
}

// WatchNodes calls see with each existing node, and with each that is added or changes later, one call at a
// time, until see returns true. The API server ends a watch after some minutes; the next one begins with
// all nodes again. If ctx ends the watch, the error is ctx's cause.
func (c *Client) WatchNodes(ctx context.Context, see func(NodeObject) (enough bool)) error {
	for {
		body, err := c.get(ctx, "/api/v1/nodes?watch=true")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		enough, err := readNodes(body, see)
		_ = body.Close()
		if enough {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
}

func readNodes(body io.Reader, see func(NodeObject) bool) (enough bool, err error) {
	events := json.NewDecoder(body)
	for {
		var e struct {
			Type   string     `json:"type"`
			Object NodeObject `json:"object"`
		}
		if err := events.Decode(&e); err != nil {
			return false, err
		}
		if (e.Type == "ADDED" || e.Type == "MODIFIED") && see(e.Object) {
			return true, nil
		}
	}
}
