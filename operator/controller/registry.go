package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/meter"
	"github.com/gpuready/gpuready/operator/registry"
	"github.com/gpuready/gpuready/operator/right"
)

// Registry says which images there are: registry.Cache does.
type Registry interface {
	// Look returns what is known of an image, at once.
	Look(image string, a registry.Access) driver.Presence
	// Retain forgets all images but these.
	Retain(images ...string)
	// Run asks until ctx ends.
	Run(ctx context.Context) error
}

// Ask returns a function that asks a registry for an image with the pull secrets of a
// namespace, of which Access has the names only: they are read when they are needed.
func Ask(r *registry.Client, secrets client.Reader, namespace string, m *meter.Metrics) func(context.Context, string, registry.Access) driver.Presence {
	return func(ctx context.Context, image string, a registry.Access) driver.Presence {
		with := registry.Access{CAs: a.CAs}
		for _, secret := range a.Secrets {
			data, err := readSecret(ctx, secrets, client.ObjectKey{Namespace: namespace, Name: secret.Name})
			if err != nil {
				return driver.Presence{State: driver.Unknown, Why: right.Tell(err)}
			}
			with.Secrets = append(with.Secrets, registry.Secret{Name: secret.Name, Data: data})
		}
		presence := r.Look(ctx, image, with)
		switch presence.State {
		case driver.Present:
			m.Answered(meter.Present)
		case driver.Absent:
			m.Answered(meter.Absent)
		default:
			m.Answered(meter.Unknown)
		}
		return presence
	}
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

// access is what a registry is asked with for the policy's driver.
func access(names []string) registry.Access {
	var a registry.Access
	for _, name := range names {
		a.Secrets = append(a.Secrets, registry.Secret{Name: name})
	}
	return a
}
