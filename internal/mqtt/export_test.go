package mqtt

// SetVersion makes a gate for packets from a server expect another version of MQTT than 5.
func (g *Gate) SetVersion(version byte) { g.version = version }
