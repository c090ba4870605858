package cluster_test

func runChild(string) int { return 0 }
