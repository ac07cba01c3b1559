package controlplane

import (
	"errors"
	"os"

	"github.com/gpuready/gpuready/test/cluster/api"
	"github.com/gpuready/gpuready/test/cluster/network"
	"github.com/gpuready/gpuready/test/cluster/pki"
)

// writeKeys writes the keys and certificates of the control plane's programs.
func (p *Plane) writeKeys() error {
	write := func(name string, content []byte) error {
		return os.WriteFile(p.folder.Key(name), content, 0o600)
	}
	_, key, err := pki.Key()
	if err != nil {
		return err
	}
	if err := errors.Join(write("ca.crt", p.Authority.PEM), write("sa.key", key), write(auditPolicy, []byte(auditRules(p.Audit)))); err != nil {
		return err
	}
	for file, subject := range map[string]pki.Subject{
		"apiserver": {Name: apiserver, Hosts: []string{
			"127.0.0.1", "localhost", network.PlaneIP, network.ServiceIP,
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		"kubelet-client": {Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
	} {
		pair, err := p.Authority.Issue(subject)
		if err != nil {
			return err
		}
		if err := errors.Join(write(file+".crt", pair.Cert), write(file+".key", pair.Key)); err != nil {
			return err
		}
	}
	for _, name := range []string{scheduler, controllerManager} {
		config, err := p.Client(pki.Subject{Name: "system:" + name})
		if err != nil {
			return err
		}
		if err := write(name+".kubeconfig", config); err != nil {
			return err
		}
	}
	return nil
}

// Client returns the kubeconfig of a client inside the cluster's network, with the subject as its
// identity.
func (p *Plane) Client(subject pki.Subject) ([]byte, error) {
	pair, err := p.Authority.Issue(subject)
	if err != nil {
		return nil, err
	}
	return pki.Kubeconfig("https://"+network.PlaneIP, p.folder.Cluster, p.Authority.PEM, pair)
}

// writeAdmin writes the administrator's kubeconfig, and sets the client that uses it.
func (p *Plane) writeAdmin(server string) error {
	pair, err := p.Authority.Issue(pki.Subject{Name: "kubernetes-admin", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	client, err := api.New(server, p.Authority.PEM, pair)
	if err != nil {
		return err
	}
	config, err := pki.Kubeconfig(server, p.folder.Cluster, p.Authority.PEM, pair)
	if err != nil {
		return err
	}
	p.API, p.Server, p.Kubeconfig = client, server, p.folder.Join("kubeconfig")
	return os.WriteFile(p.Kubeconfig, config, 0o600)
}
