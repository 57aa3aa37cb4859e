package catalogue

// validate checks what a route says of itself.
func (r Route) validate(c *complaints, model string) {
	if r.Weight < 0 {
		c.add("model %s: route to %s: weight can't be negative", model, r.Pool)
	}
	if r.Canary < 0 || r.Canary >= 1 {
		c.add("model %s: route to %s: canary is %v: write the part of all chains, between 0 and 1", model, r.Pool, r.Canary)
	}
	ways := 0
	for _, is := range []bool{r.Weight != 0, r.Canary != 0, r.Overflow} {
		if is {
			ways++
		}
	}
	if ways > 1 {
		c.add("model %s: route to %s: give it one of weight, canary and overflow", model, r.Pool)
	}
	if s := r.SpillWhen; s != nil {
		if s.Saturation < 0 || s.Wait < 0 {
			c.add("model %s: route to %s: spill_when: limits can't be negative", model, r.Pool)
		}
		if *s == (Spill{}) {
			c.add("model %s: route to %s: spill_when: name saturation, wait or both", model, r.Pool)
		}
	}
}

// validateRoutes checks what the routes say together.
func (m Model) validateRoutes(c *complaints) {
	canaries, weighted, overflow, spills := 0.0, 0, "", false
	for _, r := range m.Routes {
		canaries += r.Canary
		spills = spills || r.SpillWhen != nil
		switch {
		case r.Overflow:
			overflow = r.Pool
		case r.Canary == 0:
			weighted++
		}
	}
	if len(m.Routes) > 0 && weighted == 0 {
		c.add("model %s: routes: at least one needs a weight, to take what is no canary's", m.Name)
	}
	if canaries >= 1 {
		c.add("model %s: routes: the canaries have %v of all chains: leave some to the others", m.Name, canaries)
	}
	if overflow != "" && !spills {
		c.add("model %s: route to %s: overflow, but no route has spill_when", m.Name, overflow)
	}
}
