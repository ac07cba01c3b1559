package controller

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/registry"
	"github.com/gpuready/gpuready/operator/status"
)

// Registry knows which images exist and which are this product's; registry.Cache implements
// it.
type Registry interface {
	// Lookup returns what is known of an image, without waiting.
	Lookup(image string, a registry.Access) driver.Presence
	// Prune forgets the images that were not looked up since the last Prune.
	Prune()
	// Run queries registries until ctx ends.
	Run(ctx context.Context) error
}

// NewLookup returns a function that queries a registry for an image with the pull secrets and
// certificate authorities of a namespace. Access holds only their names; they are read when
// needed.
func NewLookup(r *registry.Client, from client.Reader, namespace string, m *metrics.Metrics) func(context.Context, string, registry.Access) driver.Presence {
	return func(ctx context.Context, image string, a registry.Access) driver.Presence {
		with := registry.Access{Insecure: a.Insecure}
		for _, secret := range a.Secrets {
			data, err := readSecret(ctx, from, client.ObjectKey{Namespace: namespace, Name: secret.Name})
			if err != nil {
				return driver.Presence{State: driver.Unknown, Why: status.ExplainError(err)}
			}
			with.Secrets = append(with.Secrets, registry.Secret{Name: secret.Name, Data: data})
		}
		var unread error
		if a.Bundle.Name != "" {
			with.Bundle, unread = readBundle(ctx, from, client.ObjectKey{Namespace: namespace, Name: a.Bundle.Name})
		}
		presence := r.Lookup(ctx, image, with)
		if unread != nil {
			presence.AccessProblem = unread.Error()
		}
		switch presence.State {
		case driver.Present:
			m.CountLookup(metrics.Present)
		case driver.Absent:
			m.CountLookup(metrics.Absent)
		default:
			m.CountLookup(metrics.Unknown)
		}
		return presence
	}
}

// readBundle reads a ConfigMap by a list with one item: the operator may list ConfigMaps
// anyway, and needs no further permission.
func readBundle(ctx context.Context, from client.Reader, key client.ObjectKey) (registry.Bundle, error) {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	var all corev1.ConfigMapList
	if err := from.List(ctx, &all, client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name}); err != nil {
		return registry.Bundle{}, fmt.Errorf("ConfigMap %s cannot be read, and registries are asked without it: %w", key, err)
	}
	if len(all.Items) == 0 {
		return registry.Bundle{}, fmt.Errorf("ConfigMap %s does not exist, and registries are asked without it: create it, or remove the field", key)
	}
	files := map[string][]byte{}
	maps.Copy(files, all.Items[0].BinaryData)
	for name, text := range all.Items[0].Data {
		files[name] = []byte(text)
	}
	return registry.Bundle{Name: key.String(), Files: files}, nil
}

func readSecret(ctx context.Context, from client.Reader, key client.ObjectKey) (map[string][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	var secret corev1.Secret
	if err := from.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("pull secret %s: %w", key, err)
	}
	return secret.Data, nil
}

// accessPrebuilt returns the access to the registry of prebuilt modules.
func (c *Controller) accessPrebuilt(spec *v1.DriverSpec) registry.Access {
	a := c.access(spec)
	if name := spec.PrebuildSecret(); name != "" {
		a.Secrets = append([]registry.Secret{{Name: name}}, a.Secrets...)
	}
	a.Insecure, a.Recheck = spec.PrebuildInsecure(), true
	return a
}

// access returns the access to the registry of the policy's driver.
func (c *Controller) access(spec *v1.DriverSpec) registry.Access {
	var a registry.Access
	for _, name := range spec.ImagePullSecrets {
		a.Secrets = append(a.Secrets, registry.Secret{Name: name})
	}
	if spec.CertConfig != nil {
		a.Bundle.Name = spec.CertConfig.Name
	}
	if have := c.model.configMaps[a.Bundle.Name]; have != nil {
		a.Bundle.Version = have.ResourceVersion
	}
	return a
}
