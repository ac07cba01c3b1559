package v1

import "time"

// ProvisioningBounds returns the upper bounds of ProvisioningStatus.Buckets, which has one more
// bucket for longer times.
func ProvisioningBounds() []time.Duration {
	return []time.Duration{
		5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, 45 * time.Second,
		time.Minute, 90 * time.Second, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute,
		7 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	}
}
