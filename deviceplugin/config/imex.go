package config

import "slices"

// Imex lists the IMEX channels that containers get.
type Imex struct {
	ChannelIDs []int `json:"channelIDs,omitempty" doc:"Channels that every container with a GPU gets: [] or [0]. Default: []."`
	Required   *bool `json:"required,omitempty" doc:"Fail, rather than leave the channel out, where the node does not have it. Default: false."`
}

// checkImex checks the section imex.
func (p *problems) checkImex(x Imex) {
	if len(x.ChannelIDs) > 0 && !slices.Equal(x.ChannelIDs, []int{0}) {
		p.add("imex.channelIDs", "%v: there is only channel 0 yet, as in the reference; write [] or [0]", x.ChannelIDs)
	}
}
