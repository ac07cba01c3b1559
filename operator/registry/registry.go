// Package registry looks up images in container registries: whether they exist, and whose driver
// containers they are. It does so as a node's pull would: with the pull secrets, the proxy of
// the environment and the configured certificate authorities.
package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/net/http/httpproxy"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/driver"
)

const (
	// deadline bounds one lookup, with all its credentials and redirections.
	deadline = 20 * time.Second
	// maxWhy bounds a registry's own text in a condition, in bytes.
	maxWhy = 300
)

// Options configure all lookups.
type Options struct {
	// Insecure are registries, as "host" or "host:port", that may be used without TLS or with an
	// untrusted certificate. All others are used by verified HTTPS.
	Insecure []string
	// CADirs are directories of PEM files with certificate authorities besides the system's.
	CADirs []string
	// Agent is the User-Agent.
	Agent string
}

// Access configures one lookup.
type Access struct {
	Secrets []Secret
	Bundle  Bundle
	// Insecure is a registry, as in Options.Insecure, that the policy allows to use so; "": none.
	Insecure string
	// Recheck makes a Cache query a present image again every 10 minutes: it may be deleted.
	Recheck bool
}

// Client looks up images in registries. It may be used concurrently.
type Client struct {
	agent    string
	insecure []string
	roots    *x509.CertPool
	proxy    func(*url.URL) (*url.URL, error)
	deadline time.Duration
	labels   labels
}

// New returns a Client. It reads the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) and the
// directories of certificates once. It returns an error if those cannot be read.
func New(o Options) (*Client, error) {
	roots, err := loadRoots(o.CADirs)
	if err != nil {
		return nil, err
	}
	return &Client{
		agent: o.Agent, insecure: slices.Clone(o.Insecure), roots: roots,
		proxy: httpproxy.FromEnvironment().ProxyFunc(), deadline: deadline,
	}, nil
}

// Lookup looks up an image and its Label. It takes at most 20 seconds. If the labels cannot be
// read, the image is Present nevertheless, and Why has the reason. An image is Absent only if the
// registry reports so by its protocol for accepted credentials. Everything else is Unknown, with
// the reason in Why:
//   - 401 and 403: registries that hide private images return them for missing ones, too, and a
//     node may have credentials of its own (of its cloud) that are not known here;
//   - 404 without a registry's error code, which any web server or proxy may return;
//   - 429, 5xx, no response, an unknown host name, an untrusted certificate.
//
// If the image is Absent for a lookup without credentials, Why says so: the registry may just hide
// it. Flaw lists invalid certificates of the Bundle.
func (c *Client) Lookup(ctx context.Context, image string, a Access) driver.Presence {
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	ref, err := c.parse(image, a.Insecure)
	if err != nil {
		return unknown("%v", err)
	}
	roots := c.roots.Clone()
	flaw := a.Bundle.addTo(roots)
	roundTrip, closeIdle := c.transport(roots)
	defer closeIdle()
	keys, unread := credentialsFor(ref.Context(), a.Secrets)
	presence := c.lookWithKeys(ctx, ref, keys, roundTrip)
	if unread != nil && presence.State != driver.Present {
		presence.Why = formatWhy("%s; %v", presence.Why, unread)
	}
	presence.AccessProblem = formatWhy("%s", flaw)
	return presence
}

// lookWithKeys tries one credential after the other, as the kubelet does, until one is accepted.
func (c *Client) lookWithKeys(ctx context.Context, ref name.Reference, keys []authn.AuthConfig, rt http.RoundTripper) driver.Presence {
	if len(keys) == 0 {
		presence := c.query(ctx, ref, authn.Anonymous, rt)
		if presence.State == driver.Absent {
			presence.Why = "looked up without credentials"
		}
		return presence.Presence
	}
	var last result
	for _, key := range keys {
		if last = c.query(ctx, ref, authn.FromConfig(key), rt); !last.denied {
			break
		}
	}
	return last.Presence
}

type result struct {
	driver.Presence
	denied bool
}

// query sends HEAD, which is cheapest and does not count as a pull. If that is refused it sends
// GET, whose response has a text. Labels are read by GET, once for each digest.
func (c *Client) query(ctx context.Context, ref name.Reference, auth authn.Authenticator, rt http.RoundTripper) result {
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(auth), remote.WithTransport(rt), remote.WithUserAgent(c.agent),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
	}
	head, err := remote.Head(ref, options...)
	if err == nil && manifest(head.MediaType) {
		return result{Presence: c.labels.read(head.Digest, func() (*remote.Descriptor, error) { return remote.Get(ref, options...) })}
	}
	if err == nil || worthGet(ctx, err) {
		var whole *remote.Descriptor
		if whole, err = remote.Get(ref, options...); err == nil {
			return result{Presence: c.presenceOf(whole)}
		}
	}
	return presenceOfError(err)
}

// presenceOf checks the type of a response, since any web server may return 200.
func (c *Client) presenceOf(whole *remote.Descriptor) driver.Presence {
	if manifest(whole.MediaType) {
		return c.labels.read(whole.Digest, func() (*remote.Descriptor, error) { return whole, nil })
	}
	return unknown("the answer is of type %q, which is no image's", whole.MediaType)
}

func manifest(kind types.MediaType) bool {
	return kind.IsImage() || kind.IsIndex() || kind.IsSchema1()
}

// worthGet reports whether GET may give more information than HEAD did. It does not if there was no
// response, or if the registry is overloaded.
func worthGet(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if refused, ok := errors.AsType[*transport.Error](err); ok {
		return refused.StatusCode < 500 && refused.StatusCode != http.StatusTooManyRequests || refused.StatusCode == http.StatusNotImplemented
	}
	_, failed := errors.AsType[*url.Error](err)
	return !failed
}

func presenceOfError(err error) result {
	refused, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return result{Presence: unknown("%v", err)}
	}
	switch refused.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return result{unknown("not allowed to ask (%v); name a pull secret in spec.driver.imagePullSecrets", err), true}
	case http.StatusNotFound:
		if isMissing(refused) {
			return result{Presence: driver.Presence{State: driver.Absent}}
		}
		return result{Presence: unknown("404 Not Found, and not in a registry's words (%v)", err)}
	}
	return result{Presence: unknown("%v", err)}
}

// isMissing reports whether a 404 comes from a registry. NOT_FOUND is Harbor's code.
func isMissing(e *transport.Error) bool {
	return slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool {
		switch d.Code {
		case transport.ManifestUnknownErrorCode, transport.NameUnknownErrorCode, "NOT_FOUND":
			return true
		}
		return false
	})
}

func unknown(format string, args ...any) driver.Presence {
	return driver.Presence{State: driver.Unknown, Why: formatWhy(format, args...)}
}

func formatWhy(format string, args ...any) string {
	return strings.TrimPrefix(record.Clean(fmt.Sprintf(format, args...), maxWhy), "; ")
}

// parse parses an image's reference as the kubelet does: the default registry is Docker Hub.
func (c *Client) parse(image, insecure string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, fmt.Errorf("%q is no image: %w", image, err)
	}
	if host := ref.Context().RegistryStr(); host != insecure && !c.mayBeInsecure(host) {
		return ref, nil
	}
	return name.ParseReference(image, name.Insecure)
}

func (c *Client) mayBeInsecure(host string) bool {
	bare := (&url.URL{Host: host}).Hostname()
	return slices.Contains(c.insecure, host) || slices.Contains(c.insecure, bare)
}
