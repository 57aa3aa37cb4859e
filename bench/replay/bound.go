package main

// inOrder is the part of a trace's blocks that n caches of so many blocks (0:
// no bound) find, when requests come one after another and go to the caches in
// turn. With one cache it is what no policy can do better than: the bound that
// the order of requests sets, whatever their timing.
func inOrder(t trace, n, blocks int) float64 {
	caches := make([]*kvCache, n)
	for i := range caches {
		caches[i] = newKV(blocks)
	}
	hits, all := 0, 0
	for i, r := range t {
		hits += serve(caches[i%n], r)
		all += len(r.blocks)
	}
	return ratio(hits, all)
}

// serve computes a request's prompt at a cache and returns how many blocks were
// there.
func serve(c *kvCache, r *request) (hits int) {
	hits = c.match(r.blocks)
	h, ok := c.acquire(r.blocks, len(r.blocks)-hits)
	if !ok {
		return hits
	}
	for _, id := range r.blocks[hits:] {
		c.fill(&h, id)
	}
	c.release(&h)
	return hits
}
