package kubelettest

import "fmt"

// Disconnect closes the connection to the plugin of a resource. The kubelet's own socket
// stays, so the broken connection is the only sign that the plugin gets.
func (k *Kubelet) Disconnect(resource string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	res := k.resources[resource]
	if res == nil || res.endpoint == nil {
		return fmt.Errorf("kubelettest: no plugin has registered %s", resource)
	}
	return res.endpoint.conn.Close()
}
