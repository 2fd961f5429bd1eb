"""The coefficients of Muon's Newton-Schulz steps; without torch, because TrainConfig needs their number."""

# Each row (a, b, c) is a polynomial a x + b x^3 + c x^5 that moves the singular values towards one; their composition
# is the best approximation of the constant one on [1e-3, 1], with a margin for rounding. Amsel et al. 2025, "The Polar
# Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm", table of coefficients.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
