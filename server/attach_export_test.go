package server

// Alone lets a store that is not served yet believe that nobody will object to it.
func (a *Attached) Alone() { a.patience = 0 }
