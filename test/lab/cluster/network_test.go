package cluster

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachNodeHasAddressesOfItsOwn(t *testing.T) {
	bridge := netip.PrefixFrom(netip.MustParseAddr(PlaneIP), 16).Masked()
	seen := map[string]bool{PlaneIP: true}
	for number := 1; number <= maxNodes; number++ {
		ip, pods := netip.MustParseAddr(nodeIP(number)), netip.MustParsePrefix(PodNet(number))
		require.True(t, bridge.Contains(ip), "the control plane reaches %s without a route", ip)
		require.False(t, bridge.Overlaps(pods), "pods of node %d need one", number)
		require.False(t, seen[ip.String()] || seen[pods.String()], "node %d", number)
		seen[ip.String()], seen[pods.String()] = true, true
	}
	service := netip.MustParsePrefix(serviceNet)
	require.True(t, service.Contains(netip.MustParseAddr(ServiceIP)) && service.Contains(netip.MustParseAddr(dnsIP)))
}
