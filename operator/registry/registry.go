// Package registry asks container registries whether they have an image, and whose driver
// container it is, as a node that pulls it would: with the pull secrets, by the proxy of
// the environment and by the certificate authorities that it is given.
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
	// deadline is for one question, all its credentials and redirections included.
	deadline = 20 * time.Second
	// maxWhy is what a registry's own words may fill of a condition, in bytes.
	maxWhy = 300
)

// Options are what is the same for all questions.
type Options struct {
	// Insecure are registries, as "host" or "host:port", that may be asked without TLS or
	// with a certificate that nobody vouches for. All others are asked by verified HTTPS.
	Insecure []string
	// CADirs have certificate authorities beside the system's, in PEM files.
	CADirs []string
	// Agent is the User-Agent.
	Agent string
}

// Access is what comes with one question.
type Access struct {
	Secrets []Secret
	Bundle  Bundle
	// Insecure is a registry, as Options.Insecure has them, that the policy says may be asked
	// so; "": none.
	Insecure string
	// Recheck has a Cache ask again, every 10 minutes, for an image that is there: it may
	// be deleted.
	Recheck bool
}

// Client asks registries. It may be used concurrently.
type Client struct {
	agent    string
	insecure []string
	roots    *x509.CertPool
	proxy    func(*url.URL) (*url.URL, error)
	deadline time.Duration
	labels   labels
}

// New returns a Client. It reads the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) and
// the directories of certificates once; it fails where those cannot be read.
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

// Look asks whether the registry has the image and whether that has Label, and takes at
// most 20 seconds. Where the labels cannot be read the image is Present all the same, and
// Why says why they are not known. Absent is
// what the registry itself says, in the words of its protocol, to credentials that it
// takes; whatever else goes wrong is Unknown, and Why says what:
//   - 401 and 403: registries that hide what is private answer so for what is missing,
//     too, and a node may have credentials of its own (of its cloud) that are not known here;
//   - 404 without a registry's error code: that may be any web server or proxy;
//   - 429, 5xx, no answer, no name, a certificate that nobody vouches for.
//
// Why of Absent says so where the question was asked without credentials: the registry
// may then just not show the image. Flaw says what of the Bundle is no certificate.
func (c *Client) Look(ctx context.Context, image string, a Access) driver.Presence {
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
	presence.Flaw = formatWhy("%s", flaw)
	return presence
}

// lookWithKeys asks with one key after the other, as the kubelet does, until one is let in.
func (c *Client) lookWithKeys(ctx context.Context, ref name.Reference, keys []authn.AuthConfig, rt http.RoundTripper) driver.Presence {
	if len(keys) == 0 {
		presence := c.query(ctx, ref, authn.Anonymous, rt)
		if presence.State == driver.Absent {
			presence.Why = "asked without credentials"
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

// query asks by HEAD, which costs least and does not count as a pull, and where that is
// refused by GET: only its answer has words. Labels are read by GET, once for each digest.
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

// presenceOf is what an answer tells by its type: any web server may say 200.
func (c *Client) presenceOf(whole *remote.Descriptor) driver.Presence {
	if manifest(whole.MediaType) {
		return c.labels.read(whole.Digest, func() (*remote.Descriptor, error) { return whole, nil })
	}
	return unknown("the answer is of type %q, which is no image's", whole.MediaType)
}

func manifest(kind types.MediaType) bool {
	return kind.IsImage() || kind.IsIndex() || kind.IsSchema1()
}

// worthGet says whether GET may tell more than HEAD did: not where nobody answered, or where
// the registry wants to be left alone.
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

// isMissing says whether a 404 is a registry's. NOT_FOUND is Harbor's.
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

// parse reads an image's reference as the kubelet does: without a registry it is Docker
// Hub's.
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
