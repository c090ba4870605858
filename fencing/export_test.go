package fencing

const (
	ClaimsAtOnce = claimsAtOnce
	MaxClaims    = maxClaims
)

// Kept returns the number of keys for which the guard has a turn and a claim.
func (g *Guard) Kept() (turns, claims int) {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	g.claims.mu.Lock()
	defer g.claims.mu.Unlock()
	return len(g.turns.keys), len(g.claims.keys)
}
