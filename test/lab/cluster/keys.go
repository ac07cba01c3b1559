package cluster

import (
	"errors"
	"os"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// writeKeys writes the keys and certificates of the control plane's programs.
func (p *controlPlane) writeKeys() error {
	write := func(name string, content []byte) error {
		return os.WriteFile(p.folder.Key(name), content, 0o600)
	}
	_, key, err := folder.NewKey()
	if err != nil {
		return err
	}
	if err := errors.Join(write("ca.crt", p.Authority.PEM), write("sa.key", key), write(auditPolicy, []byte(auditRules(p.Audit)))); err != nil {
		return err
	}
	for file, subject := range map[string]folder.Subject{
		"apiserver": {Name: apiserver, Hosts: []string{
			"127.0.0.1", "localhost", PlaneIP, ServiceIP,
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
		config, err := p.Client(folder.Subject{Name: "system:" + name})
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
func (p *controlPlane) Client(subject folder.Subject) ([]byte, error) {
	pair, err := p.Authority.Issue(subject)
	if err != nil {
		return nil, err
	}
	return folder.EncodeKubeconfig("https://"+PlaneIP, p.folder.Cluster, p.Authority.PEM, pair)
}

// writeAdmin writes the administrator's kubeconfig, and sets the client that uses it.
func (p *controlPlane) writeAdmin(server string) error {
	pair, err := p.Authority.Issue(folder.Subject{Name: "kubernetes-admin", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	client, err := folder.NewClient(server, p.Authority.PEM, pair)
	if err != nil {
		return err
	}
	config, err := folder.EncodeKubeconfig(server, p.folder.Cluster, p.Authority.PEM, pair)
	if err != nil {
		return err
	}
	p.API, p.Server, p.Kubeconfig = client, server, p.folder.Join("kubeconfig")
	return os.WriteFile(p.Kubeconfig, config, 0o600)
}
