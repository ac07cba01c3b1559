package kubelettest

import "fmt"

// Drop ends the connection to the plugin of a resource, as if it broke: the kubelet's
// own socket stays, and nothing makes the plugin register again.
func (k *Kubelet) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	res := k.resources[name]
	if res == nil || res.endpoint == nil {
		return fmt.Errorf("kubelettest: no plugin has registered %s", name)
	}
	return res.endpoint.conn.Close()
}
