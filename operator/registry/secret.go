package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
)

// maxKeys bounds the credentials tried for one lookup: each costs one to three round trips, and
// registries lock out clients that try too many.
const maxKeys = 5

// Secret is a Kubernetes pull secret.
type Secret struct {
	Name string
	Data map[string][]byte // of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg
}

// auths returns a secret's credentials by registry. The key of its data determines the type.
func (s Secret) auths() (map[string]authn.AuthConfig, error) {
	var config struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	var err error
	switch {
	case s.Data[corev1.DockerConfigJsonKey] != nil:
		err = json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &config)
	case s.Data[corev1.DockerConfigKey] != nil:
		err = json.Unmarshal(s.Data[corev1.DockerConfigKey], &config.Auths)
	default:
		err = fmt.Errorf("it has neither %s nor %s", corev1.DockerConfigJsonKey, corev1.DockerConfigKey)
	}
	if err != nil {
		// The decoder's message could contain secret data.
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			err = fmt.Errorf("no JSON at byte %d", syntax.Offset)
		} else if len(s.Data[corev1.DockerConfigJsonKey])+len(s.Data[corev1.DockerConfigKey]) > 0 {
			err = errors.New("an entry cannot be decoded")
		}
		return nil, fmt.Errorf("pull secret %s: %w", s.Name, err)
	}
	return config.Auths, nil
}

// credentialsFor returns the secrets' credentials for the repository in the kubelet's order: more
// specific entries first. Secrets that cannot be read are skipped and reported.
func credentialsFor(repository name.Repository, secrets []Secret) (keys []authn.AuthConfig, unread error) {
	type entry struct {
		pattern string
		auth    authn.AuthConfig
	}
	var entries []entry
	for _, secret := range secrets {
		auths, err := secret.auths()
		unread = errors.Join(unread, err)
		for _, key := range slices.Sorted(maps.Keys(auths)) {
			if pattern := parsePattern(key); pattern.matches(repository) {
				entries = append(entries, entry{pattern.host + pattern.path, auths[key]})
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(b.pattern, a.pattern) })
	for _, e := range entries[:min(len(entries), maxKeys)] {
		keys = append(keys, e.auth)
	}
	return keys, unread
}

// pattern is the scope of a secret's entry: a registry, with wildcards, and a path.
type pattern struct{ host, path string }

// parsePattern parses "registry.example", "https://registry.example/v1/",
// "registry.example:5000/team" and "*.registry.example".
func parsePattern(key string) pattern {
	if !strings.Contains(key, "://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return pattern{}
	}
	p := strings.TrimSuffix(u.Path, "/")
	for _, version := range []string{"/v1", "/v2"} {
		p = strings.TrimSuffix(p, version)
	}
	return pattern{canonical(u.Host), p}
}

func canonical(host string) string {
	switch host {
	case "docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return name.DefaultRegistry
	}
	return host
}

// matches follows k8s.io/kubernetes/pkg/credentialprovider: it compares the parts of the host
// name one by one, the port exactly, and the path as a prefix.
func (p pattern) matches(repository name.Repository) bool {
	want, have := &url.URL{Host: p.host}, &url.URL{Host: canonical(repository.RegistryStr())}
	if p.host == "" || want.Port() != have.Port() || !strings.HasPrefix("/"+repository.RepositoryStr(), p.path) {
		return false
	}
	wanted, had := strings.Split(want.Hostname(), "."), strings.Split(have.Hostname(), ".")
	if len(wanted) != len(had) {
		return false
	}
	for i := range wanted {
		if ok, err := path.Match(wanted[i], had[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
